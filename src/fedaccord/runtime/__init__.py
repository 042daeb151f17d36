"""Where clients run. One boundary: `Runtime.train`, `evaluate`, `settle`."""
