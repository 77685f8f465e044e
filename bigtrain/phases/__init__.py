"""The phases, driven: from demonstrations to beliefs, rewards and policies."""
