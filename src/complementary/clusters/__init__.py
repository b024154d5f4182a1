"""From images to the clusters that examples are mixed inside."""
