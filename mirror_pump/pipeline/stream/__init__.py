"""Receives the replication stream and turns it into the changes that each batch makes to each table."""
