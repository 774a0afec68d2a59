"""Tests of the command. A package, because other folders have files of the same names."""
