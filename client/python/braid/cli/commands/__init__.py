"""Commands of `braid`. Each module has its `command`, and imports large packages when it runs."""
