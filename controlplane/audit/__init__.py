"""Who did what, why, before and after; and the fleet revision that every change raises."""
