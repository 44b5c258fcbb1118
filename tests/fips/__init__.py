"""ML Chassis under a FIPS provider of OpenSSL."""
