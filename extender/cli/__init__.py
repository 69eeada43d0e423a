"""The command line: one file for one or a few commands, and printers. The package contains no logic."""
