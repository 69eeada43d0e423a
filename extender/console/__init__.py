"""`berth console`: answers people. It keeps what serve's records say, explains, audits, and counts the fleet. What does
not belong here: HTTP, and anything that serve needs."""
