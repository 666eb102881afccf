"""What the tools of all packs do: files, edits, patches, commands, searches."""
