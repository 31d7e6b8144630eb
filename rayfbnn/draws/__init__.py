"""The choice of draws from stores, and the quantities computed from them."""
