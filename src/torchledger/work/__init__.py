"""What a piece of work is: shapes, FLOPs and bytes by operator, kernel names. No torch; imports only the nouns."""
