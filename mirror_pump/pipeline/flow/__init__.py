"""What the threads of a pump exchange (batches, events, reported steps), and the context and base that they share."""
