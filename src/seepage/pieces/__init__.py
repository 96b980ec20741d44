"""The pieces that attacks are made of: pure functions, written for one client."""
