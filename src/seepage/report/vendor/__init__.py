"""Libraries of others that the report carries inside of it; versions.json says which, fetch.py gets them again."""
