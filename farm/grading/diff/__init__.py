"""Analysis of a change's text: a patch for people, style violations, and lines that look like forged results.

The page is farm/docs/architecture/rewards.md.
"""
