"""What is changed in a request before it is sent."""
