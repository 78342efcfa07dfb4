"""What travels between the threads of a pump: batches, publish requests, events, steps; and how its threads end."""
