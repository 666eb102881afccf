"""Operations that the tools of all packs share: files, edits, patches, commands, searches.

The page is sandboxes/docs/tools.md.
"""
