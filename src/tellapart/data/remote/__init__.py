"""Images, tables and archives that are not on this machine: over HTTP, and in object stores through fsspec."""
