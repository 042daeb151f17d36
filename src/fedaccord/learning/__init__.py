"""Trains aggregation policies: episodes of real federations, a Gymnasium environment, and the learners."""
