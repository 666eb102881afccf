"""Stored rollouts as people look at them: pages of heads by a filter, and figures of many rollouts at once."""
