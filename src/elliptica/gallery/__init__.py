"""`elliptica gallery`: a static site of all results, built from their records."""

from elliptica.gallery.site import build_gallery as build_gallery
