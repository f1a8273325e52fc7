"""Who is there, and what ranks say to each other. Worker side."""
