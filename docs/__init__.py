"""Pages, examples, and the scripts that make pictures and the error index of the pages."""
