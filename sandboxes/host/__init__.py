"""The limits of this machine and how hard it is pressed."""
