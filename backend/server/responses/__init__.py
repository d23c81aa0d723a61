"""/v1/responses, stateless: translated to chat on the way in, written as events on the way out."""
