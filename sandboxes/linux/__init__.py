"""Small jobs for Linux: files of the kernel, trees of any depth, children that have to end."""
