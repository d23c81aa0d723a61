"""The operator's page: a login, and files that a browser runs against ``/admin``."""
