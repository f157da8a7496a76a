"""The laws that a sweep must obey before anything is learned from it: one file a law, one idea a function."""
