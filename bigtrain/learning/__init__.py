"""What learners share: networks, linear heads, devices."""
