"""What goes over HTTP and into Redis: strict models, and their encodings."""
