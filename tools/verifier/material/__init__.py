"""What pairs are made of: groups, other people's pairs and questions, rewordings."""
