"""Samples of a server, the rates between two samples, and the tables of `braid top`."""
