"""Operations that the tools of all packs share: files, edits, patches, commands, searches."""
