"""What can be captured and attacked, network by network: `python -m networks` in `examples` prints the table."""
