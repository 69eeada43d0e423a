"""What both processes stand on: supervised tasks, informers, readiness, policy files. What does not belong here:
decisions."""
