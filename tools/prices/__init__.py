"""Makes the price table of the gateway of an open list of prices."""
