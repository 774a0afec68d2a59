"""What `braid top` shows: samples of a server, the rates between two, and their tables."""
