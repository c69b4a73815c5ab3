"""What people are told: names that they may have meant, results as HTML."""
