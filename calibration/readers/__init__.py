"""One file a source; each turns a path into a `Sweep`, and nothing else knows the source's format."""
