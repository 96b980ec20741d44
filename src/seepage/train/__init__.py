"""Training of what attacks bring with them."""
