"""What a job should ask for, decided from what it needs: eligibility, fit, generation, sharing, slo, in this order."""
