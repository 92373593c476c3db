"""What a job should ask for, decided from what it needs; asked in the order eligibility, fit, generation, sharing, slo."""
