"""What the two profiles of the table reward are made of. `rewards.table` is the reward itself."""
