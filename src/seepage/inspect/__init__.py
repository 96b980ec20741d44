"""What a captured federation gives away, and why: `seepage doctor` and `seepage attack`."""
