"""What a pool learns in the background: who is a member, who is ready, how busy an engine is."""
