"""Who counts for how much: guard (rules, always on), policy (weights), sums."""
