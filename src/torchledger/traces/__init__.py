"""A trace, ours or somebody's, becomes events with costs, idle time with causes, and a breakdown."""
