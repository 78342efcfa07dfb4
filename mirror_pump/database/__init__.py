"""What everything that speaks SQL shares: quoting, the pinned search path, and what errors of the driver mean."""
