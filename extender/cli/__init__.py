"""The command line: one file a command, plus printers. What does not belong here: logic."""
