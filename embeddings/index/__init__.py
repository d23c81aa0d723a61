"""Vector indexes: in memory, FAISS, Qdrant."""
