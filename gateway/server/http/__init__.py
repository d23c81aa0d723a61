"""HTTP from clients: connections, bodies, handlers."""
